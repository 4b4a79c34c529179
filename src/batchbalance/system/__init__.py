"""Services close to the operating system: durable files, memory, threads, progress."""

"""What the package needs of the operating system: durable files, memory, threads, progress."""

"""Operating system services: durable files, memory, threads, progress."""

"""What is read and what is written: rows in, whole files out, and the one way to the Hub."""

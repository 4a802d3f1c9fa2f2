"""What the commands of the CLI do; `cli` only parses and prints."""

"""The commands of the distribution. Importing this package needs no extra."""

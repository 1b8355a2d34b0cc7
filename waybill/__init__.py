"""The commands of the distribution. Importing this package imports nothing that an extra brings."""

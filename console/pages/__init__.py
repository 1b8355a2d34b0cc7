"""The pages of the console: each is a function from what is known to a `Page`."""

"""Reference data as it is published: what its messages say, whose are taken, and which versions are in force. Pure."""

"""What another machine installs: lists, wheels, Debian packages."""

"""What billing costs, on usage that is made up."""

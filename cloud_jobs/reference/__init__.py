"""What the regions are told and what the centre takes: fences, tariffs, accounts and alert rules, versioned."""

"""Who is who: names, authorities, certificates, tokens, operators' keys and the registry of devices."""

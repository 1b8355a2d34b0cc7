"""Canaries: a real vehicle whose drive and answers are known beforehand, watched at each hop up to the money."""

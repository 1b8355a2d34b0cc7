"""The part of the truth that only tests need: visits and passages, from fixes to amounts."""

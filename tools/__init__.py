"""What developers and operators run from a checkout; not packaged."""

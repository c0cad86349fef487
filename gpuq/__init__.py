"""What a person touches: the commands and how they are shown."""

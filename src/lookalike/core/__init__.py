"""What every other room stands on; nothing here knows what an image is."""

"""What every other room stands on; nothing here knows what a picture is."""

"""What all other packages build on: files, settings, seeds, processes, runs. Nothing here knows what an image is."""

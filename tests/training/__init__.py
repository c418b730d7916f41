"""What training scripts import: saving, resuming, sampling."""

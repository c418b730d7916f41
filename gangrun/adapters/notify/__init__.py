"""Services that tell people something."""

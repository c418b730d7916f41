"""Makes a run, owns it and ends it: on this box, in an allocation, or as jobs of a scheduler."""

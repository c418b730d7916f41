"""Writes checkpoints: plan, snapshot, shard files, the background saver, schedule and retention."""

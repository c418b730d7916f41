"""What a training script imports. torch may be used here, but never at import of this package.

``step`` (progress and requests) and ``environment`` (resume point) are light; they work as no-ops outside gangrun.
"""

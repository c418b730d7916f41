"""Prints the environment that its launcher gave it."""

import json
import os

print("ENVIRONMENT " + json.dumps(dict(os.environ)), flush=True)

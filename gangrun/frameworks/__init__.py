"""Other people's checkpoints: what they are called, and which framework writes them so. No file is opened here."""

"""The tests. ``waiting`` is how they wait, ``conftest`` says which run where, ``test_house`` keeps the house."""

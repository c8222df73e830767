"""How fast a plan will be, what it needs and how long its trial takes, before it is run."""

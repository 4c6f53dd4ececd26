"""The data sets: every module here registers its loaders when it is imported; nothing else has to be edited."""

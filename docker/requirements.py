"""Prints what the image needs of the project's dependencies, one a line: requirements.py EXTRA,EXTRA"""

import re
import sys
import tomllib

#: The engine of simulations on many cores; nothing of a deployment uses it.
LEFT_OUT = {"ray"}

with open("/src/pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = [name for name in sys.argv[1].split(",") if name]
wanted = [*project["dependencies"], *(one for name in extras for one in project["optional-dependencies"][name])]
print("\n".join(one for one in wanted if re.split(r"[^A-Za-z0-9_.-]", one)[0] not in LEFT_OUT))

"""Health check of a container, with the standard library alone: health.py URL [CA]; exit code 0 for status 200.

``tcp://HOST:PORT`` is healthy where something listens.
"""

import socket
import ssl
import sys
import urllib.request
from urllib.parse import urlsplit

url, *authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority[0]) if authority else None
place = urlsplit(url)
try:
    if place.scheme == "tcp":
        socket.create_connection((place.hostname or "", place.port or 0), timeout=15).close()
        sys.exit(0)
    with urllib.request.urlopen(url, timeout=15, context=context) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"{url}: {error}")

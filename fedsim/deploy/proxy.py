"""Configuration of nginx in front of the SuperLink.

The open-source SuperLink serves its Fleet API, which nodes need, on the same port as its Control and Runtime APIs,
which have no login: whoever reaches that port runs code on every client. So clients reach this proxy only. It passes
``/v1/fleet/`` on, answers 404 to the rest, and writes one line of JSON a request with its bytes
(:mod:`fedsim.deploy.traffic` adds them up).
"""

from dataclasses import dataclass

_LOG_FIELDS = {
    "time": "$msec",
    "client": "$remote_addr",
    "key": "$http_flwr_public_key",
    "path": "$uri",
    "status": "$status",
    "received": "$request_length",
    "received_body": "$content_length",
    "sent": "$bytes_sent",
    "sent_body": "$body_bytes_sent",
}
#: Largest body that passes; Flower cuts arrays into pieces of 5 MiB.
_MOST = "64m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """What differs between deployments.

    Attributes:
        listen: address and port that clients connect to.
        upstream: ``host:port`` of the SuperLink; its certificate must name the host.
        certificate, key: of this listener, files.
        authority: file of the certificate authority that signed the SuperLink's certificate.
        access_log: file, or ``/dev/stdout``.
        error_log: file, or ``stderr``.
        folder: for temporary files; must be writable.
        resolver: DNS server that is asked again when the SuperLink's address changes; empty to ask at the start.
    """

    listen: str
    upstream: str
    certificate: str
    key: str
    authority: str
    access_log: str = "/dev/stdout"
    error_log: str = "stderr"
    folder: str = "/tmp"
    resolver: str = ""

    def config(self) -> str:
        """Return nginx's configuration; it runs in the foreground and without root."""
        fields = ",".join(f'"{name}":"{value}"' for name, value in _LOG_FIELDS.items())
        resolver = f"resolver {self.resolver} valid=5s;" if self.resolver else ""
        target = "$superlink" if self.resolver else self.upstream
        temporary = "\n".join(
            f"  {kind}_temp_path {self.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""\
# Made by `fedsim deploy`. Clients may use the Fleet API and nothing else.
daemon off;
worker_processes 1;
pid {self.folder}/nginx.pid;
error_log {self.error_log} warn;
events {{ worker_connections 4096; }}
http {{
  log_format traffic escape=json '{{{fields}}}';
  access_log {self.access_log} traffic;
{temporary}
  server_tokens off;
  {resolver}
  server {{
    listen {self.listen} ssl;
    ssl_certificate {self.certificate};
    ssl_certificate_key {self.key};
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size {_MOST};
    keepalive_timeout 75s;
    keepalive_requests 100000;
    location = /health {{ access_log off; default_type text/plain; return 200 "ok\\n"; }}
    location /v1/fleet/ {{
      set $superlink {self.upstream};
      proxy_pass https://{target};
      proxy_ssl_trusted_certificate {self.authority};
      proxy_ssl_verify on;
      proxy_ssl_verify_depth 1;
      proxy_ssl_name {self.upstream.rpartition(":")[0]};
      proxy_ssl_server_name on;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_request_buffering off;
      proxy_read_timeout 120s;
    }}
    location / {{ return 404; }}
  }}
}}
"""


__all__ = ["Proxy"]

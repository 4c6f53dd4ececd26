# One image for all services of a deployment: SuperLink, ServerApp runner, clients, helper; and a small one for nginx.
#
#   docker build -t fedsim .                 packages from PyPI, PyTorch's CPU wheels from TORCH_INDEX
#   docker build -t fedsim --build-arg PIP_NO_INDEX=1 .     everything from the folder wheelhouse/, without a network
#
# PYTHON_IMAGE may be any Debian with CPython 3.11 to 3.13 under /usr/local. For OpenFHE (threshold decryption) take
# python:3.12-slim-trixie and EXTRAS=tenseal,openfhe.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
ARG PIP_NO_INDEX
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=tenseal
ENV PIP_NO_INDEX=${PIP_NO_INDEX} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/fedsim
# Dependencies before sources: a change of a source file does not fetch them again. What wheelhouse/ has is taken first.
COPY pyproject.toml constraints.txt /src/
COPY docker/requirements.py /src/docker/
RUN --mount=type=bind,source=wheelhouse,target=/wheels \
    python /src/docker/requirements.py "${EXTRAS}" > /src/requirements.txt \
    && if ls /wheels/torch-*.whl >/dev/null 2>&1; then index=; else index="--index-url ${TORCH_INDEX}"; fi \
    && /opt/fedsim/bin/pip install --quiet --find-links /wheels ${index} torch -c /src/constraints.txt \
    && /opt/fedsim/bin/pip install --quiet --find-links /wheels -c /src/constraints.txt -r /src/requirements.txt
COPY . /src
# Compiled for every processor of its kind: crypto._native picks the fastest code when it runs.
RUN --mount=type=bind,source=wheelhouse,target=/wheels \
    pip wheel --quiet --no-deps --find-links /wheels -c /src/constraints.txt -w /tmp/wheels /src \
    && /opt/fedsim/bin/pip install --quiet --no-deps --no-index /tmp/wheels/fedsim-*.whl \
    && /opt/fedsim/bin/pip uninstall --quiet --yes pip setuptools \
    && sh /src/docker/trim.sh /opt/fedsim \
    && /opt/fedsim/bin/python -c 'import fedsim.client_app, fedsim.server_app, fedsim.deploy.worker'

FROM ${PYTHON_IMAGE} AS fedsim
COPY --from=build /opt/fedsim /opt/fedsim
COPY docker/health.py docker/client.sh /opt/fedsim/bin/
# No process works as root; compose sets the user who owns the deployment's folder.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp fedsim
ENV PATH=/opt/fedsim/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp FLWR_HOME=/tmp/flwr \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2 RAY_USAGE_STATS_ENABLED=0 \
    OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
USER 10001
CMD ["fedsim", "--help"]

FROM ${PYTHON_IMAGE} AS proxy
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx-light && rm -rf /var/lib/apt/lists/*
COPY docker/health.py /opt/health.py
USER 10001
CMD ["nginx", "-e", "stderr", "-c", "/run/secrets/nginx.conf"]

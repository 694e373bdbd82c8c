# The image of a job's servers and workers, with sparsefleet built from this source:
#   docker build -t registry/ads:1 .
# Add your scripts with a second Dockerfile (FROM registry/ads:1, COPY train.py /app/), or mount them.
#
# EXTRAS: optional dependencies, such as ray,redis. PIP_EXTRA_INDEX_URL: an index with a torch for
# CPUs, which is far smaller than the default one.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libssl-dev make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY bindings bindings
COPY core core
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG EXTRAS=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL} PYTHONUNBUFFERED=1
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/*.whl)${EXTRAS:+[$EXTRAS]}" \
    && rm -rf /wheels
# An ordinary user, the one of the pods in `sparsefleet manifest`.
RUN useradd --uid 1000 --create-home sparsefleet \
    && mkdir -p /app /state /checkpoints \
    && chown sparsefleet:sparsefleet /app /state /checkpoints
USER 1000
WORKDIR /app
CMD ["sparsefleet", "--help"]

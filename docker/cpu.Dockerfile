# A bundle on a CPU: Debian or Ubuntu, the distribution's Python with numpy, and the bundle.
# The build context is the bundle itself:
#
#   docker build -f docker/cpu.Dockerfile -t minilm minilm.ecb
#   docker run --rm --read-only minilm
#
# scripts/container does this with docker, podman or buildah, and without a base image too;
# docs/containers.md has the rest. What may be set with `docker run --env`:
#
#   EDGECOMPILE_VARIANT    use this variant of the bundle, not the best one for the CPU
#   EDGECOMPILE_FALLBACK   cpu here: a bundle's TensorRT variant is passed over, for its CPU variant

# Debian from 12 on or Ubuntu from 22.04 on: a bundle's libraries need glibc 2.34.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# Nothing that is written here may name the day: shadow and Python's compiler look at this.
ARG SOURCE_DATE_EPOCH=0

# No recommended packages: numpy suggests compilers. The user has a number that Kubernetes can check
# (runAsNonRoot), no password and no home. Logs and caches that name days or inodes are left out.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-numpy \
 && useradd --no-log-init --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
      --uid 10001 --user-group edgecompile \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old \
      /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/log/apt /var/log/*.log

# The bundle in a layer of its own, last: a new one leaves the layers below as they are. It belongs
# to root, so the process can't change what it runs.
COPY . /opt/model.ecb
# The runtime is installed beside the bundle once it was compared with the manifest, which any command
# does first. Nobody can write byte code later. It is checked by the sources' hash, as with
# SOURCE_DATE_EPOCH all of Python's is here: an engine that sets all files' times would make the usual
# kind stale.
RUN python3 -I /opt/model.ecb/__main__.py --help >/dev/null \
 && cp -R /opt/model.ecb/runtime /opt/runtime \
 && find /opt/runtime -name __pycache__ -type f -delete \
 && python3 -m compileall -q /opt/runtime

# python3 -m looks in the working directory first.
WORKDIR /
ENV PYTHONPATH=/opt/runtime \
    PYTHONDONTWRITEBYTECODE=1 \
    EDGECOMPILE_FALLBACK=cpu
USER 10001

# No HEALTHCHECK: a self-test runs the whole model beside the one that serves, and a container that
# runs one command says how it went by its exit code (docs/errors.md). A server has an address of its
# own for that: see docs/containers.md.
ENTRYPOINT ["python3", "-m", "edgecompile.runtime"]
CMD ["selftest", "/opt/model.ecb"]

# A bundle on a Jetson: NVIDIA's TensorRT image for JetPack, numpy, and the bundle. The build context
# is the bundle itself:
#
#   docker build --platform linux/arm64 -f docker/jetson.Dockerfile -t minilm-jetson minilm.ecb
#   docker run --rm --runtime nvidia --read-only --tmpfs /tmp \
#     --security-opt systempaths=unconfined \
#     --volume /etc/nv_tegra_release:/etc/nv_tegra_release:ro \
#     --volume minilm-engines:/var/cache/edgecompile minilm-jetson
#
# THIS IMAGE WAS NEVER BUILT AND NEVER RUN ON A JETSON by the project: it was written from NVIDIA's
# documents. Only its form is tested (tests/deploy/test_jetson_image.py). docs/containers.md says more.
#
# The engine isn't in the image. It fits one kind of GPU, one driver and one TensorRT, so it is built
# at the first start on the device, into a volume, and found there at later starts; when one of these
# changes it is built again. There is no GPU while an image is built, either.
#
# --runtime nvidia: NVIDIA's container runtime, part of JetPack, hands the container the GPU's device
# files and the driver's libraries of the host (libcuda, libnvdla_compiler and others), which must
# not be in an image. Without it `import tensorrt` fails. `--gpus all` isn't the way on a Jetson.
#
# systempaths=unconfined: engines hide /sys/firmware from containers, and with it the module's name in
# /proc/device-tree. /etc/nv_tegra_release has the release of L4T. Without both it can't be seen that
# a bundle is for another module or JetPack, and the engine's key in the volume leaves them out.
#
# What may be set with `docker run --env`:
#
#   EDGECOMPILE_CACHE      where engines are kept (default here: /var/cache/edgecompile)
#   EDGECOMPILE_MODE       reduce-overhead: replay one captured CUDA graph per bucket
#   EDGECOMPILE_VARIANT    use this variant of the bundle
#   EDGECOMPILE_FALLBACK   cpu: run on the Jetson's CPU cores where the GPU can't be used
#   EDGECOMPILE_CUDART     another libcudart than the one that the linker finds
#   EDGECOMPILE_CUDA_DRIVER  another libcuda than libcuda.so.1, for variants of Triton kernels
#   EDGECOMPILE_CUBLASLT   another cuBLASLt than the one that is found, for such variants

# TensorRT 10.3 and CUDA 12.6: JetPack 6.2 (L4T r36.4). For another JetPack take the image of its
# TensorRT; the host's L4T has to fit it.
ARG BASE=nvcr.io/nvidia/l4t-tensorrt:r10.3.0-runtime
FROM ${BASE}

ARG SOURCE_DATE_EPOCH=0

# A base whose TensorRT has no Python module gets it in the version of its libnvinfer, from the apt
# sources that the base brings. It is only looked for: it can't be imported without the host's
# libraries. /dev/nvmap and its like belong to the group video, 44 in Debian and Ubuntu.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-numpy \
 && if ! python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tensorrt") is None)'; then \
      version=$(dpkg-query --show --showformat '${Version}' libnvinfer10 2>/dev/null || true); \
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        "python3-libnvinfer${version:+=$version}"; \
    fi \
 && useradd --no-log-init --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
      --uid 10001 --user-group --groups video edgecompile \
 && install -d -o 10001 -g 10001 -m 0755 /var/cache/edgecompile \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old \
      /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/log/apt /var/log/*.log

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
    EDGECOMPILE_CACHE=/var/cache/edgecompile
USER 10001

# Finishes the engine unless it is there, then becomes the command. What `finish` says goes to stderr.
# If it fails the container ends with its exit code, unless the CPU was asked for instead. A shell
# that is process 1 ignores signals that it has no trap for, so that `docker stop` would wait;
# `finish` can be ended at any moment and goes on at the next start.
ENTRYPOINT ["/bin/sh", "-euc", "\
    code=0; \
    trap 'kill $!; wait $! || true; exit 143' TERM INT; \
    python3 -m edgecompile.runtime finish /opt/model.ecb >&2 & \
    wait $! || code=$?; \
    trap - TERM INT; \
    [ $code = 0 ] || [ \"${EDGECOMPILE_FALLBACK:-}\" = cpu ] || exit $code; \
    exec \"$@\"", "finish-first"]
CMD ["python3", "-m", "edgecompile.runtime", "selftest", "/opt/model.ecb"]

# One image for webhook, controller and device plugin; the manifests say which one a container is.
# `make image` builds it so that the same sources give the same image. Without a network, for instance, pip takes what it
# finds in wheels/ (`make wheels`).
# To pin the base image to its digest, which only your registry can tell:
# make image IMAGE='--python-image python:3.12.12-slim-bookworm@sha256:DIGEST'
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

# The build runs on the builder's own processor, whatever the image is for: pip picks the wheels of the target and runs
# none of them, and the last stage runs nothing at all, so no builder has to emulate another processor.
FROM --platform=$BUILDPLATFORM ${PYTHON_IMAGE} AS build
ARG TARGETARCH
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Dependencies first: they change seldom, and then only the second layer is built again.
COPY requirements/image.txt wheels* wheels/
RUN python3 -m venv --without-pip /opt/gpushare \
    && case "${TARGETARCH:-$(uname -m)}" in arm64|aarch64) machine=aarch64 ;; *) machine=x86_64 ;; esac \
    && python3 -m pip install --no-compile --no-deps --only-binary=:all: \
    --require-hashes --requirement wheels/image.txt \
    --target "$(/opt/gpushare/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    $(for minor in 36 34 31 28 27 26 24 17; do echo --platform manylinux_2_${minor}_$machine; done) \
    --platform manylinux2014_$machine $(if ls wheels/*.whl >/dev/null 2>&1; then echo --no-index --find-links wheels; fi)
COPY pyproject.toml README.md LICENSE ./
COPY gpushare gpushare
COPY certs certs
COPY webhook webhook
COPY controller controller
COPY deviceplugin deviceplugin
COPY gpushare_cli gpushare_cli
# Compiled here, because the root file system is read-only in the cluster, and never compared with the sources' times,
# which a reproducible image does not keep.
ENV PIP_PYTHON=/opt/gpushare/bin/python3
RUN python3 -m pip install --no-compile --no-deps --no-build-isolation . && python3 -m pip uninstall --yes setuptools \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/gpushare

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title=gpushare org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /opt/gpushare /opt/gpushare
# numpy has no work for several threads here, and the controller forks.
ENV PATH=/opt/gpushare/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
USER 65532:65532
CMD ["gpushare", "--help"]

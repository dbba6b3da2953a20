# One image for webhook, controller and device plugin; the manifests say which one a container is.
# docker build --tag gpushare:0.1.0 .
# To pin the base image to its digest, which only your registry can tell:
# docker build --build-arg PYTHON_IMAGE=python:3.12.12-slim-bookworm@sha256:DIGEST --tag gpushare:0.1.0 .
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/gpushare
ENV PATH=/opt/gpushare/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Dependencies first: they change seldom, and then only the second layer is built again.
COPY requirements/image.txt requirements/
RUN pip install --require-hashes --requirement requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY gpushare gpushare
COPY certs certs
COPY webhook webhook
COPY controller controller
COPY deviceplugin deviceplugin
COPY gpushare_cli gpushare_cli
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes setuptools pip

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title=gpushare org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /opt/gpushare /opt/gpushare
# The root file system is read-only in the cluster: nothing is compiled or written at run time.
ENV PATH=/opt/gpushare/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
CMD ["gpushare", "--help"]

# Dynamo's real frontend and KV router with its mock engine: no GPU, no model weights. linux/amd64.
#   docker build -f docker/dynamo.Dockerfile -t agentx-dynamo .
# Base: the index digest of python:3.12-slim-trixie. Packages but Dynamo's own: docker/dynamo.lock, by hash (make lock).
ARG PYTHON=python:3.12-slim-trixie@sha256:f77ac9e44ae96ef2c90b8053ea08c31f8be030f824196b0ae4db6d462c84e51f

FROM ${PYTHON}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN groupadd --gid 1000 dynamo \
 && useradd --uid 1000 --gid 1000 --create-home --shell /usr/sbin/nologin dynamo \
 && install --directory --owner dynamo --group dynamo /store /model
COPY docker/dynamo.lock /tmp/dynamo.lock
RUN pip install --require-hashes --only-binary :all: -r /tmp/dynamo.lock \
 && pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
COPY tests/servers/tiny_model.py /tmp/tiny_model.py
USER 1000:1000
# A tokenizer trained on Python's own library; the mock engine needs no weights.
RUN python /tmp/tiny_model.py /model --tokenizer-only
ENV PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1
WORKDIR /store
CMD ["python", "-m", "dynamo.frontend", "--help"]

# The app in a container: each step is the Makefile's, so there is no second recipe to keep.
# docs/how-to/install.md says how it is built and run, for a CPU and for CUDA.
FROM python:3.11-slim-bookworm

RUN apt-get update \
  && apt-get install --yes --no-install-recommends make \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --create-home --uid 10001 ckv \
  && install --directory --owner=ckv --group=ckv --mode=700 /var/lib/ckv /opt/criticalkv-lab

WORKDIR /opt/criticalkv-lab
USER ckv
COPY --chown=ckv:ckv . .

# Where packages come from beside the registry; PyTorch's index of CPU builds makes a CPU image.
ARG PIP_EXTRA_INDEX_URL=
RUN make model

# Other machines reach a container, so CKV_AUTH must be given, or the app says so and ends.
ENV CKV_HOST=0.0.0.0 \
  CKV_PORT=7860 \
  CKV_HOME=/var/lib/ckv \
  HF_HOME=/var/lib/ckv/huggingface
VOLUME /var/lib/ckv
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
  CMD [".venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/healthz', timeout=4)"]
# SIGTERM is for the app, which ends its worker itself.
CMD [".venv/bin/python", "app.py"]

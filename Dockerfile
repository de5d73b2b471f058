# flare as a container: docker build -t flare . && docker run --rm -v "$PWD:/data" flare verify /data/out
FROM python:3.13-slim
COPY . /source
RUN python -m pip install --no-cache-dir --disable-pip-version-check /source
RUN flare --version
WORKDIR /data
USER nobody
ENTRYPOINT ["flare"]

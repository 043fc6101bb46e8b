# One image for the broker, the worker and the generator of compose.yaml: the command says which.
# BASE may be any Debian with Python 3.11 or newer; `make image` makes one where no registry can be reached.
ARG BASE=python:3.11.13-slim-bookworm

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libssl-dev pkg-config python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/xabridge && python3 -m venv /opt/build
WORKDIR /src
# locked, and in a layer of their own: they change seldom
COPY containers/requirements.lock containers/build.lock ./
RUN /opt/xabridge/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY xabridge xabridge
COPY xa xa
COPY dtx dtx
COPY rm_amqp rm_amqp
COPY rm_db rm_db
COPY rm_openwire rm_openwire
COPY rm_delta rm_delta
COPY tm tm
COPY docs docs
COPY tools tools
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/xabridge/bin/pip install --no-cache-dir --no-deps /wheels/xabridge-*.whl

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends libssl3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /var/lib/xabridge --create-home xabridge
COPY --from=build /opt/xabridge /opt/xabridge
ENV PATH=/opt/xabridge/bin:$PATH
USER xabridge
WORKDIR /var/lib/xabridge
VOLUME /var/lib/xabridge
ENTRYPOINT ["xabridge"]

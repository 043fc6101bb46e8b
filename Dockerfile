# One image for the broker, the worker and the generator of compose.yaml: the command says which.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libssl-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY xa xa
COPY dtx dtx
COPY rm_amqp rm_amqp
COPY rm_db rm_db
COPY tm tm
COPY pipeline pipeline
COPY bench bench
COPY docs docs
RUN python -m pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libssl3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /var/lib/xabridge --create-home xabridge
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir --no-index --find-links=/wheels xabridge && rm -r /wheels
USER xabridge
WORKDIR /var/lib/xabridge
VOLUME /var/lib/xabridge
ENTRYPOINT ["xabridge"]

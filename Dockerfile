# docker build -t fedsim .                                        on a CPU
# docker build -t fedsim:cuda --build-arg TORCH=cu130 .           on GPUs
# docker run --rm --shm-size=2g -v "$PWD/runs:/data/runs" fedsim run quickstart
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY fedsim fedsim
COPY clients clients
COPY server server
COPY attacks attacks
COPY experiments experiments
RUN pip install --no-cache-dir hatchling && hatchling build -t wheel -d /dist

FROM python:3.11-slim
ARG TORCH=cpu
COPY constraints.txt /dist/
COPY --from=build /dist/*.whl /dist/
RUN pip install --no-cache-dir -c /dist/constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/${TORCH} /dist/*.whl \
    && rm -r /dist \
    && useradd --create-home --uid 1000 fedsim \
    && install -d -o fedsim /data/runs
USER fedsim
WORKDIR /data
ENTRYPOINT ["fedsim"]

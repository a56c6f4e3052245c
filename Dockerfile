# A service that holds nothing but Python, lookalike and its models; it runs as nobody in particular.
#
#   docker build -t lookalike .
#   docker run --rm -v /images:/images:ro -v lookalike:/data lookalike index /images
#   docker run --rm -v /images:/images:ro -v lookalike:/data lookalike keys new laptop
#   docker run --rm -p 8080:8080 -v /images:/images:ro -v lookalike:/data lookalike
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir -c constraints.txt '.[heif]'

FROM python:3.11-slim
COPY --from=build /venv /venv
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin lookalike \
    && install -d -o lookalike -m 0700 /data
USER 10001
WORKDIR /data
VOLUME /data
ENV PATH=/venv/bin:$PATH LOOKALIKE_HOME=/data HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["lookalike"]
CMD ["serve", "--host", "0.0.0.0"]

from tests.models.conftest import files, make, model  # noqa: F401

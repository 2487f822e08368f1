from tests.support.backend_fixtures import (  # noqa: F401
    postgres,
    postgres_house,
)

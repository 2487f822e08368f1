from tests.support.backend_fixtures import (  # noqa: F401
    backend,
    house,
    postgres,
    postgres_house,
    shop,
)

"""The process behind `CuttableLinks`: one proxy for all links of a stack.

    python -m deploy.local.proxy_process CONFIG.json

CONFIG names the control port and, for each link, where it listens and where it leads (see `ProxyConfig`).
"""

import asyncio
import sys
from pathlib import Path

from deploy.local.proxy import ProxyConfig, serve

# A module of its own: one that the package imports too would run a second time, and Python warns of it at each start.
if __name__ == "__main__":
    asyncio.run(serve(ProxyConfig.model_validate_json(Path(sys.argv[1]).read_text())))

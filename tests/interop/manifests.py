"""The manifests of packaging/ for Kubernetes and Compose: what they name in each other is there, and the server takes what they give it.

    manifests.py HEADWORKS KUBERNETES COMPOSE FOLDER
"""
import os
import subprocess
import sys

import yaml
from tap import check

headworks, kubernetes, compose, folder = sys.argv[1:]


def accepted(*words):
    """The server's verdict about a command line."""
    told = subprocess.run([headworks, *words], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    return told.returncode == 0, told.stdout + told.stderr


with open(kubernetes) as file:
    manifests = {one["kind"]: one for one in yaml.safe_load_all(file)}
config, service, stateful = (manifests[kind] for kind in ("ConfigMap", "Service", "StatefulSet"))
versions = {one["kind"]: one["apiVersion"] for one in manifests.values()}
check("each manifest has its API", versions == {"ConfigMap": "v1", "Service": "v1", "StatefulSet": "apps/v1"}, versions)
spec = stateful["spec"]
template = spec["template"]
labels = template["metadata"]["labels"]
pod = template["spec"]
(container,) = pod["containers"]
check("the service is the one that the set names", spec["serviceName"] == service["metadata"]["name"])
check("labels are selected by both", service["spec"]["selector"] == labels == spec["selector"]["matchLabels"])
ports = {(port["name"], port["containerPort"]) for port in container["ports"]}
check("its ports are the container's", {(port["name"], port["port"]) for port in service["spec"]["ports"]} == ports, ports)
volumes = {one["name"] for one in pod["volumes"]} | {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
check("every volume is there", {mount["name"] for mount in container["volumeMounts"]} == volumes, volumes)
check("and the configuration", [one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one] == [config["metadata"]["name"]])
text = config["data"]["main.toml"]
for mount in ("/var/lib/headworks", "/run/headworks"):
    text = text.replace(mount, folder)
path = os.path.join(folder, "kubernetes.toml")
with open(path, "w") as file:
    file.write(text)
check("the server takes the configuration", *accepted("check", path))
limit = int(next(line for line in text.splitlines() if line.startswith("stop-timeout")).split('"')[1].rstrip("s"))
check("it stops before it is killed", limit < pod["terminationGracePeriodSeconds"], limit)

with open(compose) as file:
    stack = yaml.safe_load(file)
service = stack["services"]["headworks"]
words = [str(word) for word in service["command"]]
check("the server takes the command of the stack", *accepted(*words, "--dump-config"))
named = {volume.split(":")[0] for volume in service["volumes"]}
check("its volumes are there", named == stack["volumes"].keys(), named)
limit = int(words[words.index("--stop-timeout") + 1].rstrip("s"))
check("it stops before it is killed", limit < int(service["stop_grace_period"].rstrip("s")), limit)

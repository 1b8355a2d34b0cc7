# Java with the modules that Spark uses: a third of Debian's
FROM scratch AS java
ADD jdk.tar /
ENV LANG=C.UTF-8
RUN ["/usr/lib/jvm/java-17-openjdk-amd64/bin/jlink", "--add-modules", "MODULES", "--strip-java-debug-attributes", "--no-header-files", "--no-man-pages", "--output", "/java"]

